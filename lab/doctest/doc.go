// Package doctest holds no code, only tests: they keep what the documents say about the source true, so that a page
// cannot name a test that was renamed or a rule that does not exist, and its programs compile.
package doctest
