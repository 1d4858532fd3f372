"""VisionIPC, by which openpilot's camera process hands frames over: client and server."""

from cereal.visionipc.client import VisionIpcCameras, VisionIpcReader
from cereal.visionipc.server import VisionIpcServer

__all__ = ["VisionIpcCameras", "VisionIpcReader", "VisionIpcServer"]
