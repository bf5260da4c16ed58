"""The game, and the agent that plays it: written with the openai package, by somebody who knows of no training."""

import random
import re

from openai import OpenAI

NUMBERS = range(1, 11)
GUESSES = 4
REWARDS = (1.0, 0.9, 0.8, 0.7)
"""By the guess that was right; none was: 0."""

PERFECT_PLAY = 0.81
"""The mean reward over all secrets of whoever halves what is left."""
FIXED_GUESSES = 0.34
"""That of whoever always says the same four numbers: what can be had without reading the answers."""

SYSTEM = "Guess my number from 1 to 10. Say only the number."
EXAMPLES = (
    ("Guess.", "5"), ("Higher.", "8"), ("Lower.", "6"), ("Higher.", "7"),
    ("Yes. New number. Guess.", "5"), ("Lower.", "2"), ("Higher.", "3"),
)  # fmt: skip
BEGIN = "Yes. New number. Guess."


class Game:
    """One secret number. `answer` a guess until `over`; `reward` then says how good that was."""

    def __init__(self, secret: int) -> None:
        self.secret = secret
        self.guesses = 0
        self.won = False

    @property
    def over(self) -> bool:
        return self.won or self.guesses == GUESSES

    @property
    def reward(self) -> float:
        return REWARDS[self.guesses - 1] if self.won else 0.0

    def answer(self, said: str) -> str:
        """What the other player says to a guess."""
        self.guesses += 1
        read = re.fullmatch(r"\s*(\d{1,2})\s*\.?\s*", said)
        if read is None or int(read[1]) not in NUMBERS:
            return "Only a number from 1 to 10. Guess."
        guess = int(read[1])
        self.won = guess == self.secret
        return "Yes." if self.won else "Higher." if guess < self.secret else "Lower."


def play(client: OpenAI, model: str, secret: int, chance: random.Random, temperature: float = 1.0) -> Game:
    """An agent's loop: say what was said, read the reply, act on it."""
    game = Game(secret)
    messages = [{"role": "system", "content": SYSTEM}]
    for asked, said in EXAMPLES:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    messages.append({"role": "user", "content": BEGIN})
    while not game.over:
        reply = client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=4,
            temperature=temperature,
            seed=chance.randrange(2**31),
        )
        said = reply.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": game.answer(said)})
    return game
