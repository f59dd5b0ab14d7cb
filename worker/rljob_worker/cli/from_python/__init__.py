"""What programs and notebooks call: `rljob.run`, `plan` and `validate` for a job that is written, `rljob.train` for one
of functions and tables."""
