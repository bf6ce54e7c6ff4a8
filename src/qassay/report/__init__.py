"""The one document every command fills, and its renderers: one file each, named `render_*`."""
