"""Messages to tokens and back: chat templates, text of the world, calls of tools."""
