"""The atlas in a browser: a server on the loopback address, and a page to pan and zoom a matrix."""

from regard.web.app import make_app
from regard.web.head_tiles import HeadTiles
from regard.web.record_store import Shelf
from regard.web.server import bind, make_server, serve
from regard.web.typed_sentences import ModelReader, Reader

__all__ = ["HeadTiles", "ModelReader", "Reader", "Shelf", "bind", "make_app", "make_server", "serve"]
