"""VisionIPC, the protocol by which openpilot's camera process shares frames: client and server."""

from cereal.visionipc.client import VisionIpcCameras, VisionIpcReader
from cereal.visionipc.server import VisionIpcServer

__all__ = ["VisionIpcCameras", "VisionIpcReader", "VisionIpcServer"]
