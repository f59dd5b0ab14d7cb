"""One attempt on one machine: its pods as processes, and what each is given: environment, devices, certificates."""
