"""How servers with GPUs are started: argument lists, environment, container commands and scripts. Starts nothing."""
