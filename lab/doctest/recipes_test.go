package doctest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recipes are the directories whose files a page shows whole or links to, by their sections. The tests beside them run
// the files.
var recipes = map[string]map[string]string{
	"batches": {"rest": "A batch of a REST API", "jsonrpc": "JSON-RPC 2.0", "graphql": "GraphQL"},
	"orm": {
		"gorm": "GORM", "bun": "bun", "ent": "ent", "sqlc": "sqlc with database/sql", "sqlcpgx": "sqlc with pgx",
	},
	"routers": {
		"nethttp": "net/http", "chi": "chi", "gorilla": "gorilla/mux", "gin": "gin", "echo4": "echo v4", "echo5": "echo v5",
		"fiber": "fiber",
	},
}

// TestPagesShowTheirRecipes: each section shows the files that are tested as they are, or links to them, and each file
// is short.
func TestPagesShowTheirRecipes(t *testing.T) {
	t.Parallel()
	for page, sections := range recipes {
		text, err := os.ReadFile("../../docs/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		dirs, err := os.ReadDir("../feature/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			if !dir.IsDir() {
				continue
			}
			title, listed := sections[dir.Name()]
			if !listed {
				t.Errorf("docs/%s.md: which section shows lab/feature/%s/%s?", page, page, dir.Name())
				continue
			}
			_, section, _ := strings.Cut(string(text), "\n## "+title+"\n")
			section, _, _ = strings.Cut(section, "\n## ")
			wantShown(t, section, filepath.Join("../feature", page, dir.Name()))
		}
	}
}

// wantShown wants a section to show each file of a directory, or to link to it.
func wantShown(t *testing.T, section, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no recipe: %v", dir, err)
	}
	for _, name := range files {
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := string(file)
		text = text[strings.Index(text, "package "):] // without its comment
		linked := strings.Contains(section, "](../lab/"+strings.TrimPrefix(filepath.ToSlash(name), "../")+")")
		if !linked && !strings.Contains(section, "```go\n"+text+"```\n") {
			t.Errorf("the section of the page neither shows %s nor links to it", name)
		}
		if lines := strings.Count(text, "\n"); lines >= 50 {
			t.Errorf("%s: a recipe of %d lines", name, lines)
		}
	}
}
