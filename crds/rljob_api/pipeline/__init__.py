"""A job's stages with everything filled in that its user left out: order, models, columns, meshes."""
