"""Tests of finding the lines that a change adds."""

from mutation.changes import changed_lines, lines_added
from mutation.tests.builders import commit_all, git

DIFF = """\
--- a/module.py
+++ b/module.py
@@ -3 +3,2 @@ def f():
-    old
+    new
+    newer
@@ -9,2 +10,0 @@ def g():
-    gone
-    gone too
@@ -20 +19 @@
-old
+new
"""


def test_lines_that_a_diff_adds():
    assert lines_added(DIFF) == {3, 4, 19}


def test_lines_of_the_working_tree_that_the_base_lacks(tmp_path):
    module = tmp_path / "module.py"
    module.write_text("a\nb\nc\n")
    commit_all(tmp_path)
    assert changed_lines(tmp_path, "module.py", "main") == set()
    module.write_text("a\nB\nc\nd\n")
    assert changed_lines(tmp_path, "module.py", "main") == {2, 4}
    git(tmp_path, "checkout", "--quiet", "-b", "topic")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--all", "--message=topic")
    assert changed_lines(tmp_path, "module.py", "main") == {2, 4}


def test_all_lines_of_a_new_file(tmp_path):
    (tmp_path / "other.py").write_text("a\n")
    commit_all(tmp_path)
    (tmp_path / "module.py").write_text("a\nb\n")
    assert changed_lines(tmp_path, "module.py", "main") == {1, 2}
