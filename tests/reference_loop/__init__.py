"""The whole loop a second time, slow and plain, in numpy and onnxruntime, to compare with.

Written from the published facts about the models alone; shares no code with the packages.
"""
