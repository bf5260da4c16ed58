"""What to do about a plugin that is not loaded."""

import re

from rolltap.plugins.sources import Candidate

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")


def way_out(candidate: Candidate, problem: str) -> str:
    """The way out for people, one sentence."""
    if " is taken by another plugin" in problem or "is the same object as plugin" in problem:
        return "one of the two must go, or go by another name"
    leave_out = f'or leave it out: [plugins] disable = ["{candidate.name}"]'
    if missing := _MISSING_MODULE.search(problem):
        return f"install what it needs (pip install {missing[1]}, if the package has the module's name), {leave_out}"
    if candidate.package:
        return (
            f"update or remove its package (pip install -U {candidate.package}, "
            f"pip uninstall {candidate.package}), {leave_out}"
        )
    return f"mend it, {leave_out}"
