"""The plugins that ship with rolltap. Each uses nothing but `import rolltap` and can be disabled and replaced."""
