"""Images of the test cluster: what they are made from, who builds them, where they are kept, how nodes get them."""
