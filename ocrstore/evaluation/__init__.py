"""Boxes from probability maps, and how good they are; numpy and cv2 only, no torch."""
