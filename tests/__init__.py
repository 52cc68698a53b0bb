"""A package by declaration, so that no installed distribution's ``tests`` is taken for it."""
