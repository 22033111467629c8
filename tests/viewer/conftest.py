"""A small store with pictures, views and maps, drawn on the spot; a viewer that answers for it."""

import contextlib
import http.client
import json
import threading
from urllib.parse import urlencode

import cv2
import numpy as np
import pytest

import ocrstore

SIDE = 64
QUADS = (
    [10.0, 10.0, 90.0, 10.0, 90.0, 34.0, 10.0, 34.0],
    [20.0, 60.0, 100.0, 62.0, 99.0, 80.0, 19.0, 78.0],
    [110.0, 20.0, 150.0, 20.0, 150.0, 40.0, 110.0, 40.0],
)
TEXTS = ("Total", "12.50", "###")


def draw(number, *, width, height):
    """A picture whose colour tells which one it is."""
    picture = np.full((height, width, 3), (200, 10 * number % 256, 60), np.uint8)
    cv2.putText(picture, f"no {number}", (12, 30), cv2.FONT_HERSHEY_SIMPLEX, 0.8, (0, 0, 0), 2)
    return picture


def write_store(path, *, samples=12, first=0, maps=True):
    """Write a store as `build` would: pictures of 160x120 or 120x160, a view of 64x64."""
    columns = {
        "image": ocrstore.Column("uint8", (None, None, 3)),
        "tensor": ocrstore.Column("uint8", (SIDE, SIDE, 3)),
        "inverse_matrix": ocrstore.Column("float64", (3, 3)),
    }
    names = ("prob_map", "thresh_map", "prob_mask", "thresh_mask") if maps else ()
    for name in names:
        dtype = "float16" if name.endswith("map") else "uint8"
        columns[name] = ocrstore.Column(dtype, (SIDE, SIDE))
    shown = {name: name for name in columns if name != "image"}
    recipe = ocrstore.Recipe.make(size=SIDE, columns=list(columns))
    entry = {"recipe": recipe.to_json(), "fingerprint": recipe.fingerprint, "columns": shown}
    metadata = {"views": {"64": entry}, "default_view": "64"}
    with ocrstore.create(path, columns, metadata=metadata) as writer:
        for number in range(first, first + samples):
            width, height = (160, 120) if number % 2 == 0 else (120, 160)
            picture = draw(number, width=width, height=height)
            scale = SIDE / max(width, height)
            view = np.zeros((SIDE, SIDE, 3), np.uint8)
            small = cv2.resize(picture, (round(width * scale), round(height * scale)))
            view[: small.shape[0], : small.shape[1]] = small
            inverse = np.diag([1 / scale, 1 / scale, 1.0])
            arrays = {"image": picture, "tensor": view, "inverse_matrix": inverse}
            for name in names:
                values = np.zeros((SIDE, SIDE), columns[name].numpy_dtype)
                values[5:20, 5:30] = 1
                arrays[name] = values
            count = number % 4
            attributes = {
                "width": width,
                "height": height,
                "annotated": number % 3 != 0,
                "polygons": list(QUADS[:count]),
                "ignored": [text == "###" for text in TEXTS[:count]],
                "texts": list(TEXTS[:count]),
                "weight": None if number == 5 else number / 2,
                "source_hash": np.iinfo(np.int64).max - number,
            }
            writer.append(f"img_{number:02}.jpg", arrays, attributes=attributes)
    return path


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory):
    """A store that no test changes."""
    return write_store(tmp_path_factory.mktemp("viewer") / "val.ocrs")


@pytest.fixture(scope="session")
def opened(shared_store):
    """The same, opened."""
    return ocrstore.open(shared_store)


class Client:
    """Asks a running viewer, as a browser with the token would."""

    def __init__(self, viewer):
        self.viewer = viewer

    def request(self, path, *, method="GET", cookie=True, headers=None, **query):
        """Return status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.viewer.port, timeout=300)
        headers = dict(headers or {})
        if cookie:
            headers.setdefault("Cookie", f"ocrstore_{self.viewer.port}={self.viewer.token}")
        try:
            text = urlencode(query)
            connection.request(method, f"{path}?{text}" if text else path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, path, *, status=200, **options):
        """Return what the JSON says, of an answer with that status."""
        found, _, body = self.request(path, **options)
        assert found == status, body
        return json.loads(body)


@contextlib.contextmanager
def running(path, *, host="127.0.0.1", **options):
    """Run a viewer of a store in this process."""
    pytest.importorskip("uvicorn", reason="the viewer needs ocrstore[view]")
    from ocrstore.viewer.app import Viewer
    from ocrstore.viewer.live import Live

    viewer = Viewer(Live(path, **options), host=host)
    thread = threading.Thread(target=viewer.run, daemon=True)
    thread.start()
    yield Client(viewer)
    viewer.stop()
    thread.join(300)
    assert not thread.is_alive()


@pytest.fixture
def start_viewer():
    """Return a function that starts a viewer for one test."""
    with contextlib.ExitStack() as stack:
        yield lambda *given, **options: stack.enter_context(running(*given, **options))


@pytest.fixture(scope="session")
def client(shared_store):
    """A viewer of the shared store, for all tests that change nothing."""
    with running(shared_store) as client:
        yield client
