"""What goes over the wire, with answers whose tokens the test has chosen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.live_server import NAME, LiveServer
from tests_serve_types import Script  # replaced below
