"""Plants small defects in a package and lists those that its tests do not notice; see docs/decisions/0033-mutants.md."""
