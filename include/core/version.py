"""The project's version; it stands in every exported file."""

VERSION = "0.1.0"
