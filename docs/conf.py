# SPDX-License-Identifier: BSD-3-Clause

"""Settings of Sphinx, which docs/build.py runs on the pages that it lays out."""

import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import api_reference

project = "remat"
version = re.search(r"VERSION ([0-9.]+)", (Path(__file__).parents[1] / "CMakeLists.txt").read_text().split("project(")[1])[1]
html_title = f"remat {version}"

extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc"]
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["remat.css"]
highlight_language = "none"
smartquotes = False  # "host" in a docstring is code
default_role = "literal"

# The headings of pages are link targets under the names that GitHub gives them.
myst_heading_anchors = 6

breathe_projects = {"remat": os.environ["REMAT_DOXYGEN_XML"]}
breathe_default_project = "remat"
breathe_default_members = ("members",)
cpp_index_common_prefix = ["remat::"]
maximum_signature_line_length = 100

autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_use_legacy_class_based = True  # the newer autodoc does not call typed_signature() for classes of pybind11
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True

# A name of remat that is not in the reference is an error; other libraries have pages of their own.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!remat_meta\.)\w+\..*"),
    ("py:.*", r"(.*\.)?_[A-Z]\w*"),
    ("cpp:.*", r"(std|at|c10|torch|detail|remat::detail)(::.*)?|remat|u?int[0-9]+_t|size_t"),
    ("cpp:.*", "PlannedCuts|Replayer|StepRecording|Tape"),  # headers only declare these classes, for pointers
]


def setup(app):
    app.connect("autodoc-process-signature", api_reference.typed_signature)
    app.connect("autodoc-process-docstring", api_reference.markup)
    app.connect("missing-reference", api_reference.public_name)
