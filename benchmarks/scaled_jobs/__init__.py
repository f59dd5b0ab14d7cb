"""One job on more and more pods, through data buffers and through one controller; in namespaces behind shaped links."""
