"""The data buffer as others reach it: servers around what answers workers (`local`) and peers (`flight`)."""
