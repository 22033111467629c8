"""A small file of each dialect, written after the samples that its authors publish."""

# a sample reads best as its authors break its lines:
# ruff: noqa: E501

from __future__ import annotations

import io
import json
from dataclasses import dataclass

import numpy as np
from scipy.io import savemat

SIZE = (1000, 500)
"""Of the picture of each sample, for dialects that give shares of it."""


@dataclass(frozen=True)
class Published:
    """An annotation file of one picture, and what has to come out of it."""

    dialect: str
    file: str
    picture: str
    content: bytes
    regions: tuple
    """(points, text, ignored) of each region."""


def cells(*items):
    """Return a MATLAB cell array of one row."""
    row = np.empty((1, len(items)), object)
    row[0, :] = [None] * len(items)
    for i, item in enumerate(items):
        row[0, i] = item
    return row


def mat(**variables):
    """Return the bytes of a MATLAB file."""
    stream = io.BytesIO()
    savemat(stream, variables)
    return stream.getvalue()


def quad(*box):
    """Return the corners of x1, y1, x2, y2."""
    left, top, right, bottom = box
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def pairs(*values):
    """Return x, y, x, y, ... as points."""
    return [list(point) for point in zip(values[::2], values[1::2], strict=True)]


def turned(x, y, w, h, angle, *, about):
    """Return the corners of a box that is turned, in radians, about a point."""
    matrix = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return ((np.array(quad(x, y, x + w, y + h)) - about) @ matrix + about).tolist()


SAMPLES: list[Published] = []


def add(dialect, file, picture, content, *regions):
    """Add a sample; what is neither bytes nor text is written as JSON."""
    if isinstance(content, str):
        content = content.encode()
    elif not isinstance(content, bytes):
        content = json.dumps(content).encode()
    SAMPLES.append(Published(dialect, file, picture, content, regions))


# ICDAR's family
add(
    "icdar",
    "gt_img_1.txt",
    "img_1.jpg",
    "\ufeff377,117,463,117,465,130,378,130,Genaxis Theatre\r\n493,115,519,115,519,131,493,131,[06]\r\n374,155,409,155,409,170,374,170,###\r\n",
    (pairs(377, 117, 463, 117, 465, 130, 378, 130), "Genaxis Theatre", False),
    (quad(493, 115, 519, 131), "[06]", False),
    (quad(374, 155, 409, 170), "###", True),
)
add(
    "icdar",
    "gt_100.txt",
    "100.jpg",
    '38, 43, 920, 215, "Tiredness"\n275, 264, 665, 450, "kills"\n',
    (quad(38, 43, 920, 215), "Tiredness", False),
    (quad(275, 264, 665, 450), "kills", False),
)
add(
    "icdar-mlt",
    "gt_img_2.txt",
    "img_2.jpg",
    "86,192,186,192,186,234,86,234,Latin,Stop\n250,40,290,40,290,60,250,60,Korean,서울, 부산\n",
    (quad(86, 192, 186, 234), "Stop", False),
    (quad(250, 40, 290, 60), "서울, 부산", False),
)
add(
    "icdar-poly",
    "img11.jpg.txt",
    "img11.jpg",
    "206,633,251,811,386,931,542,946,620,926,646,976,550,1009,358,989,189,845,140,629,PETROSAINS\n53,62,115,62,121,100,80,110,52,96,###\n",
    (
        pairs(
            206,
            633,
            251,
            811,
            386,
            931,
            542,
            946,
            620,
            926,
            646,
            976,
            550,
            1009,
            358,
            989,
            189,
            845,
            140,
            629,
        ),
        "PETROSAINS",
        False,
    ),
    (pairs(53, 62, 115, 62, 121, 100, 80, 110, 52, 96), "###", True),
)
add(
    "rctw",
    "image_0.txt",
    "image_0.jpg",
    '390,902,1856,902,1856,1225,390,1225,0,"金氏眼镜"\n1875,1170,2149,1170,2149,1245,1875,1245,1,"###"\n',
    (quad(390, 902, 1856, 1225), "金氏眼镜", False),
    (quad(1875, 1170, 2149, 1245), "###", True),
)
CTW = (
    131,
    58,
    208,
    49,
    279,
    56,
    346,
    76,
    412,
    101,
    473,
    141,
    530,
    192,
    510,
    246,
    458,
    210,
    405,
    175,
    350,
    151,
    291,
    137,
    228,
    133,
    165,
    134,
)
add(
    "ctw1500",
    "0001001.txt",
    "1001.jpg".replace("1001", "0001001"),
    ",".join(map(str, CTW)) + ",####OLATHE\n",
    (pairs(*CTW), "OLATHE", False),
)
add(
    "ctw1500-offsets",
    "0200.txt",
    "0200.jpg",
    ",".join(
        map(str, (131, 49, 530, 246, *(v - (49 if i % 2 else 131) for i, v in enumerate(CTW))))
    )
    + "\n",
    (pairs(*CTW), None, False),
)
add(
    "ctw1500-xml",
    "0200.xml",
    "0200.jpg",
    f"""<Annotations>
 <image file="0200.jpg">
   <box height="197" left="131" top="49" width="399">
     <label>OLATHE</label>
     <segs>{",".join(map(str, CTW))}</segs>
     <pts x="183" y="95" />
     <pts x="251" y="89" />
   </box>
 </image>
</Annotations>
""",
    (pairs(*CTW), "OLATHE", False),
)
add(
    "yolo-obb",
    "a.txt",
    "a.jpg",
    "0 0.1 0.2 0.3 0.2 0.3 0.4 0.1 0.4\n15 0.780811 0.743961 0.782371 0.74686 0.777691 0.752174 0.776131 0.749758\n",
    (quad(100, 100, 300, 200), None, False),
    (pairs(780.811, 371.9805, 782.371, 373.43, 777.691, 376.087, 776.131, 374.879), None, False),
)
# scene text of others
add(
    "totaltext",
    "poly_gt_img1001.txt",
    "img1001.jpg",
    """x: [[153 161 179 195 184 177]], y: [[347 323 305 315 331 357]], ornt: [u'c'], transcriptions: [u'the']
x: [[ 184  222  273
   269  230  202]], y: [[ 293  269  270
   296  297  317]], ornt: [u'c'], transcriptions: [u"al[p]aca's"]
x: [[483 529 534 487]], y: [[346 345 398 400]], ornt: [u'#'], transcriptions: [u'#']
""",
    (pairs(153, 347, 161, 323, 179, 305, 195, 315, 184, 331, 177, 357), "the", False),
    (pairs(184, 293, 222, 269, 273, 270, 269, 296, 230, 297, 202, 317), "al[p]aca's", False),
    (pairs(483, 346, 529, 345, 534, 398, 487, 400), "#", True),
)
ROWS = np.empty((2, 6), object)
for _i, _row in enumerate(
    (
        ([153, 161, 179], [347, 323, 305], "the", "c"),
        ([483, 529, 534, 487], [346, 345, 398, 400], "#", "#"),
    )
):
    ROWS[_i, :] = [
        "x:",
        np.array([_row[0]], np.int16),
        "y:",
        np.array([_row[1]], np.int16),
        _row[2],
        _row[3],
    ]
add(
    "totaltext-mat",
    "poly_gt_img1002.mat",
    "img1002.jpg",
    mat(polygt=ROWS),
    (pairs(153, 347, 161, 323, 179, 305), "the", False),
    (pairs(483, 346, 529, 345, 534, 398, 487, 400), "#", True),
)
add(
    "synthtext",
    "gt.mat",
    "8/ballet_106_0.jpg",
    mat(
        imnames=cells("8/ballet_106_0.jpg"),
        wordBB=cells(
            np.array(
                [quad(10, 20, 90, 40), quad(100, 20, 180, 41), quad(10, 50, 60, 70)], np.float32
            ).transpose(2, 1, 0)
        ),
        txt=cells(np.array(["Lines: and", "lost    "])),
        charBB=cells(np.zeros((2, 4, 14))),
    ),
    (quad(10, 20, 90, 40), "Lines:", False),
    (quad(100, 20, 180, 41), "and", False),
    (quad(10, 50, 60, 70), "lost", False),
)
add(
    "msra-td500",
    "IMG_0030.gt",
    "IMG_0030.JPG",
    "0 0 676 296 195 64 -0.05\n1 1 682 392 192 52 0.12\n",
    (turned(676, 296, 195, 64, -0.05, about=(773.5, 328)), None, False),
    (turned(682, 392, 192, 52, 0.12, about=(778, 418)), None, True),
)
add(
    "art",
    "train_labels.json",
    "gt_1726.jpg",
    {
        "gt_1726": [
            {
                "transcription": "SOUVENIR",
                "points": [[158, 80], [221, 57], [288, 84], [280, 120]],
                "language": "Latin",
                "illegibility": False,
            },
            {
                "transcription": "###",
                "points": [[10, 20], [30, 20], [30, 40]],
                "language": "Latin",
                "illegibility": True,
            },
        ]
    },
    ([[158, 80], [221, 57], [288, 84], [280, 120]], "SOUVENIR", False),
    ([[10, 20], [30, 20], [30, 40]], "###", True),
)
add(
    "art",
    "train_full_labels.json",
    "gt_0.jpg",
    {
        "gt_0": [
            {
                "transcription": "中国",
                "points": [[1, 2], [9, 2], [9, 8], [1, 8]],
                "illegibility": False,
            }
        ],
        "gt_1": [],
    },
    (quad(1, 2, 9, 8), "中国", False),
)
add(
    "rects",
    "train_ReCTS_000001.json",
    "train_ReCTS_000001.jpg",
    {
        "chars": [
            {"points": [138, 35, 205, 35, 205, 100, 138, 100], "transcription": "味", "ignore": 0}
        ],
        "lines": [
            {
                "points": [138, 35, 466, 35, 466, 102, 138, 100],
                "transcription": "味道",
                "ignore": 0,
            },
            {"points": [1, 1, 9, 1, 9, 9, 1, 9], "transcription": "###", "ignore": 1},
        ],
    },
    (pairs(138, 35, 466, 35, 466, 102, 138, 100), "味道", False),
    (quad(1, 1, 9, 9), "###", True),
)
PARAGRAPHS = [
    {"vertices": quad(0, 0, 90, 40), "legible": True, "lines": [
        {"vertices": quad(0, 0, 90, 20), "text": "two words", "legible": True, "handwritten": False, "vertical": False, "words": [
            {"vertices": quad(0, 0, 40, 20), "text": "two", "legible": True, "handwritten": False, "vertical": False},
            {"vertices": quad(50, 0, 90, 20), "text": "", "legible": False, "handwritten": False, "vertical": False}]},
        {"vertices": quad(0, 20, 90, 40), "text": "", "legible": False, "handwritten": False, "vertical": False, "words": []}]},
]  # fmt: skip
HIER = {
    "image_id": "00a0f9bd4c2d3a5b",
    "image_width": 1024,
    "image_height": 768,
    "paragraphs": PARAGRAPHS,
}
for _file, _content in (
    ("train.jsonl", {"info": {"date": "release"}, "annotations": [HIER]}),
    ("lines.jsonl", json.dumps(HIER) + "\n\n" + json.dumps({**HIER, "image_id": "other"})),
):
    add(
        "hiertext",
        _file,
        "00a0f9bd4c2d3a5b.jpg",
        _content,
        (quad(0, 0, 40, 20), "two", False),
        (quad(50, 0, 90, 20), "", True),
        (quad(0, 20, 90, 40), "", True),
    )
# documents
add(
    "doctr",
    "labels.json",
    "sample_img_01.png",
    {
        "sample_img_01.png": {
            "img_dimensions": [900, 600],
            "img_hash": "theimagedumpmyhash",
            "polygons": [quad(1, 2, 30, 12), quad(40, 2, 70, 12)],
        }
    },
    (quad(1, 2, 30, 12), None, False),
    (quad(40, 2, 70, 12), None, False),
)
add(
    "doctr",
    "labels.json",
    "a.png",
    {
        "a.png": {
            "img_dimensions": [900, 600],
            "polygons": {"words": [quad(1, 2, 30, 12)], "dates": []},
        }
    },
    (quad(1, 2, 30, 12), None, False),
)
add(
    "doctr",
    "labels.json",
    "mock_image_file_0.jpg",
    {
        "mock_image_file_0.jpg": {
            "typed_words": [
                {"value": "I", "geometry": [0.2, 0.2, 0.3, 0.4]},
                {"value": "am", "geometry": [50, 60, 160, 90]},
            ]
        }
    },
    (quad(200, 100, 300, 200), "I", False),
    (quad(50, 60, 160, 90), "am", False),
)
add(
    "funsd",
    "82092117.json",
    "82092117.png",
    {
        "form": [
            {
                "box": [84, 109, 136, 130],
                "text": "TO: R&D",
                "label": "question",
                "words": [
                    {"box": [84, 109, 104, 119], "text": "TO:"},
                    {"box": [106, 109, 136, 130], "text": "R&D"},
                ],
                "linking": [[0, 37]],
                "id": 0,
            },
            {
                "box": [85, 110, 145, 120],
                "text": "COMPOUND",
                "label": "answer",
                "words": [],
                "linking": [],
                "id": 1,
            },
        ]
    },
    (quad(84, 109, 104, 119), "TO:", False),
    (quad(106, 109, 136, 130), "R&D", False),
    (quad(85, 110, 145, 120), "COMPOUND", False),
)
add(
    "wildreceipt",
    "train.txt",
    "image_files/Image_16/11/d5de7f2a20751e50b84c747c17a24cd98bed3554.jpeg",
    json.dumps(
        {
            "file_name": "image_files/Image_16/11/d5de7f2a20751e50b84c747c17a24cd98bed3554.jpeg",
            "height": 1200,
            "width": 1600,
            "annotations": [
                {
                    "box": [550.0, 190.0, 937.0, 190.0, 937.0, 104.0, 550.0, 104.0],
                    "text": "SAFEWAY",
                    "label": 1,
                },
                {
                    "box": [1048.0, 211.0, 1074.0, 211.0, 1074.0, 196.0, 1048.0, 196.0],
                    "text": "TM",
                    "label": 0,
                },
            ],
        }
    )
    + "\n"
    + json.dumps({"file_name": "image_files/b.jpeg", "height": 1, "width": 1, "annotations": []}),
    (pairs(550, 190, 937, 190, 937, 104, 550, 104), "SAFEWAY", False),
    (pairs(1048, 211, 1074, 211, 1074, 196, 1048, 196), "TM", True),
)
add(
    "words",
    "train.json",
    "a.jpg",
    {
        "images": {
            "a.jpg": {
                "words": {
                    "0001": {
                        "points": quad(1, 2, 30, 12),
                        "transcription": "a",
                        "illegibility": False,
                        "language": ["ko"],
                    }
                }
            }
        }
    },
    (quad(1, 2, 30, 12), "a", False),
)
# tools
add(
    "coco",
    "instances.json",
    "a.jpg",
    {
        "info": {},
        "licenses": [],
        "images": [{"id": 1, "file_name": "a.jpg", "width": 9, "height": 9}],
        "annotations": [
            {
                "id": 1,
                "image_id": 1,
                "category_id": 1,
                "segmentation": [[1, 2, 30, 2, 30, 12, 1, 12]],
                "bbox": [1, 2, 29, 10],
                "iscrowd": 0,
            }
        ],
        "categories": [],
    },
    (quad(1, 2, 30, 12), None, False),
)
add(
    "cocotext",
    "cocotext.v2.json",
    "COCO_train2014_000000217925.jpg",
    {
        "cats": {},
        "anns": {
            "45346": {
                "mask": [1, 2, 30, 2, 30, 12, 1, 12],
                "class": "machine printed",
                "bbox": [1, 2, 29, 10],
                "image_id": 217925,
                "id": 45346,
                "language": "english",
                "area": 290,
                "utf8_string": "New",
                "legibility": "legible",
            }
        },
        "imgs": {
            "217925": {
                "id": 217925,
                "set": "train",
                "width": 640,
                "file_name": "COCO_train2014_000000217925.jpg",
                "height": 427,
            }
        },
        "imgToAnns": {"217925": [45346]},
        "info": {},
    },
    (quad(1, 2, 30, 12), "New", False),
)
add(
    "paddleocr",
    "Label.txt",
    "ch4_test_images/img_61.jpg",
    'ch4_test_images/img_61.jpg\t[{"transcription": "MASA", "points": [[310, 104], [416, 141], [418, 216], [312, 179]]}]\n',
    ([[310, 104], [416, 141], [418, 216], [312, 179]], "MASA", False),
)
add(
    "mmocr",
    "textdet_train.json",
    "img_1.jpg",
    {
        "metainfo": {"dataset_type": "TextDetDataset"},
        "data_list": [
            {
                "img_path": "img_1.jpg",
                "height": 720,
                "width": 1280,
                "instances": [
                    {
                        "polygon": [1, 2, 30, 2, 30, 12, 1, 12],
                        "bbox": [1, 2, 30, 12],
                        "bbox_label": 0,
                        "ignore": True,
                    }
                ],
            }
        ],
    },
    (quad(1, 2, 30, 12), None, True),
)
add(
    "labelme",
    "a.json",
    "a.jpg",
    {
        "version": "5.0.1",
        "flags": {},
        "shapes": [
            {
                "label": "text",
                "points": quad(1, 2, 30, 12),
                "group_id": None,
                "shape_type": "polygon",
                "flags": {},
            }
        ],
        "imagePath": "a.jpg",
        "imageData": None,
    },
    (quad(1, 2, 30, 12), "text", False),
)
add(
    "voc",
    "000001.xml",
    "000001.jpg",
    """<annotation>
  <folder>VOC2012</folder>
  <filename>000001.jpg</filename>
  <size><width>353</width><height>500</height><depth>3</depth></size>
  <object>
    <name>text</name><pose>Left</pose><truncated>1</truncated><difficult>0</difficult>
    <bndbox><xmin>48</xmin><ymin>240</ymin><xmax>195</xmax><ymax>371</ymax></bndbox>
  </object>
  <object>
    <type>robndbox</type><name>text</name><difficult>1</difficult>
    <robndbox><cx>100.0</cx><cy>50.0</cy><w>40.0</w><h>20.0</h><angle>0.3</angle></robndbox>
    <attributes><attribute><name>transcription</name><value>exit</value></attribute></attributes>
  </object>
</annotation>
""",
    (quad(48, 240, 195, 371), None, False),
    (turned(80, 40, 40, 20, 0.3, about=(100, 50)), "exit", True),
)
VIA = {
    "filename": "a.jpg", "size": 12345, "file_attributes": {},
    "regions": [
        {"shape_attributes": {"name": "polygon", "all_points_x": [1, 30, 30, 1], "all_points_y": [2, 2, 12, 12]}, "region_attributes": {"text": "exit"}},
        {"shape_attributes": {"name": "rect", "x": 40, "y": 2, "width": 30, "height": 10}, "region_attributes": {"ignore": "1"}},
    ],
}  # fmt: skip
VIA_REGIONS = ((quad(1, 2, 30, 12), "exit", False), (quad(40, 2, 70, 12), None, True))
add("via", "via_export_json.json", "a.jpg", {"a.jpg12345": VIA}, *VIA_REGIONS)
add(
    "via",
    "via_region_data.json",
    "a.jpg",
    {"a.jpg12345": {**VIA, "regions": dict(enumerate(VIA["regions"]))}},
    *VIA_REGIONS,
)
add(
    "via",
    "via_project.json",
    "a.jpg",
    {"_via_settings": {}, "_via_img_metadata": {"a.jpg12345": VIA}, "_via_attributes": {}},
    *VIA_REGIONS,
)
add(
    "via-csv",
    "via_export_csv.csv",
    "a.jpg",
    """filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes
a.jpg,12345,"{}",2,0,"{""name"":""polygon"",""all_points_x"":[1,30,30,1],""all_points_y"":[2,2,12,12]}","{""text"":""exit""}"
a.jpg,12345,"{}",2,1,"{""name"":""rect"",""x"":40,""y"":2,""width"":30,""height"":10}","{""ignore"":""1""}"
b.jpg,1,"{}",0,0,"{}","{}"
""",
    *VIA_REGIONS,
)
RECTANGLE = {"x": 10, "y": 20, "width": 20, "height": 20, "rotation": 0}
TURNED = {"x": 50, "y": 20, "width": 10, "height": 20, "rotation": 30}
POLYGON = {"points": [[10, 10], [20, 10], [20, 20]], "closed": True}
OF = {"original_width": 1000, "original_height": 500, "image_rotation": 0}
STUDIO = (
    (quad(100, 100, 300, 200), "hello", False),
    (turned(500, 100, 100, 100, np.pi / 6, about=(500, 100)), None, False),
    (pairs(100, 50, 200, 50, 200, 100), "world", False),
)
RESULTS = [
    {**OF, "value": {**RECTANGLE}, "id": "bb1", "from_name": "bbox", "to_name": "image", "type": "rectangle"},
    {**OF, "value": {**RECTANGLE, "labels": ["Text"]}, "id": "bb1", "from_name": "label", "to_name": "image", "type": "labels"},
    {**OF, "value": {**RECTANGLE, "text": ["hello"]}, "id": "bb1", "from_name": "transcription", "to_name": "image", "type": "textarea"},
    {**OF, "value": {**TURNED, "rectanglelabels": ["Text"]}, "id": "bb2", "from_name": "tag", "to_name": "image", "type": "rectanglelabels"},
    {**OF, "value": {**POLYGON, "text": ["world"]}, "id": "bb3", "from_name": "transcription", "to_name": "image", "type": "textarea"},
]  # fmt: skip
add(
    "labelstudio",
    "project-1-at-2023.json",
    "receipt.jpg",
    [
        {
            "id": 1,
            "annotations": [
                {"id": 1001, "was_cancelled": True, "result": []},
                {"id": 1002, "was_cancelled": False, "result": RESULTS},
            ],
            "file_upload": "1a2b3c4d-receipt.jpg",
            "drafts": [],
            "predictions": [],
            "data": {"ocr": "/data/upload/1/1a2b3c4d-receipt.jpg"},
            "meta": {},
        }
    ],
    *STUDIO,
)
add(
    "labelstudio",
    "project-1-min.json",
    "receipts/a.jpg",
    [
        {
            "ocr": "/data/local-files/?d=receipts/a.jpg",
            "id": 1,
            "bbox": [{**RECTANGLE, **OF}, {**TURNED, **OF}, {**POLYGON, **OF}],
            "label": [{**RECTANGLE, "labels": ["Text"], **OF}],
            "transcription": ["hello", None, "world"],
            "annotator": 1,
            "annotation_id": 2,
        }
    ],
    *STUDIO,
)
# as `ocrstore export --to webdataset` writes it, and with a list of words
add(
    "webdataset",
    "000000.json",
    "000000.jpg",
    {
        "key": "000000.jpg",
        "polygons": [pairs(377, 117, 463, 117, 465, 130, 378, 130), quad(374, 155, 409, 170)],
        "texts": ["Genaxis Theatre", None],
        "ignored": [False, True],
    },
    (pairs(377, 117, 463, 117, 465, 130, 378, 130), "Genaxis Theatre", False),
    (quad(374, 155, 409, 170), None, True),
)
add(
    "webdataset",
    "000001.json",
    "000001.jpg",
    {
        "words": [
            {"bbox": [10, 20, 50, 20], "text": "exit"},
            {"points": quad(1, 2, 30, 12), "text": "x", "ignore": 1},
        ]
    },
    (quad(10, 20, 60, 40), "exit", False),
    (quad(1, 2, 30, 12), "x", True),
)
add(
    "cvat", "annotations.xml", "b.jpg",
    """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><task><id>4</id><name>receipts</name><labels><label><name>text</name><attributes/></label></labels></task></meta>
  <image id="0" name="a.jpg" width="9" height="9"></image>
  <image id="1" name="b.jpg" width="1000" height="500">
    <polygon label="text" source="manual" occluded="0" points="1.00,2.00;30.00,2.00;30.00,12.00" z_order="0">
      <attribute name="text">exit &amp; more</attribute>
      <attribute name="ignore">false</attribute>
    </polygon>
    <box label="text" source="manual" occluded="0" xtl="40.00" ytl="20.00" xbr="80.00" ybr="40.00" rotation="30.00" z_order="0">
      <attribute name="ignore">false</attribute>
      <attribute name="illegible">true</attribute>
    </box>
    <tag label="scan" source="manual"></tag>
  </image>
</annotations>
""",
    (pairs(1, 2, 30, 2, 30, 12), "exit & more", False),
    (turned(40, 20, 40, 20, np.pi / 6, about=(60, 30)), None, True),
)  # fmt: skip
