"""File access: safe reading of users' files, atomic writing, and the cache directory."""
