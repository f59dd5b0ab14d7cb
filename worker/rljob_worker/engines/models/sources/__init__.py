"""Where files of a model come from: a folder, an object store, the Hub."""
