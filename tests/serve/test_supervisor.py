"""The launcher with services that only pretend, and misbehave."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from pathlib import Path

from conftest_types import StartDummies
