"""Problems and findings of a spec, in words."""
