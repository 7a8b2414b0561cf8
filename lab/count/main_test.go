package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"guard.go": "// Package onceward is small.\npackage onceward\n\n" +
			"// Guard waits for somebody in flight.\ntype Guard struct{}\n\nconst text = `a\nb`\n",
		"guard_test.go":                         "package onceward\n",
		"store/storetest/a.go":                  "package storetest\n",
		"lab/bench/main.go":                     "package main\n",
		"lab/feature/a_test.go":                 "package feature\n\n// " + strings.Repeat("x", longLine) + "\n",
		"internal/servicetest/postgres_test.go": "package servicetest\n",
		"testdata/broken.go":                    "not counted\n",
		"README.md":                             "# Onceward\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := run([]string{dir}, &out); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"lab 2 2 2 4", "tests 2 4 2 4", "suite 1 1 1 2", "examples 0 0 0 0", "product 1 8 4 11", "docs 1 1 0 0",
		"1 exported types, 1 exported names", "product: guard.go, 8 lines", "a tab counted as one: 1 (",
		"odd words in Go files: somebody 1",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "flight") {
		t.Errorf("a request in flight is counted as odd:\n%s", out.String())
	}
}

func TestCountRefusesAnEmptyDirectory(t *testing.T) {
	for _, args := range [][]string{nil, {t.TempDir()}} {
		if err := run(args, os.Stdout); err == nil {
			t.Errorf("arguments %q are accepted", args)
		}
	}
}
