// Package importrules holds no code, only tests: they keep the direction of the imports, the size of the source files
// and the names of the packages as CONTRIBUTING.md describes them, so that the plan of the house cannot drift.
package importrules
