package shop_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/onceward/onceward/internal/servers"
)

// TestMain gives the tests of the page a server, as a user's environment does.
func TestMain(m *testing.M) {
	server, err := servers.StartPostgres(context.Background())
	if err != nil {
		panic(err)
	}
	if err := os.Setenv("TEST_DATABASE_URL", server.URL()); err != nil {
		panic(err)
	}
	os.Exit(servers.Main(m))
}

// shown finds a file of this package in the page: a link to it on a line of its own, and its text below.
var shown = regexp.MustCompile("(?ms)^\\[[a-z_]+\\.go\\]\\(\\.\\./lab/shop/([a-z_]+\\.go)\\):\n\n```go\n(.*?)^```$")

// TestPageShowsTheseFiles: docs/testing.md shows the files of this package as they are compiled and run.
func TestPageShowsTheseFiles(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := make(map[string]string)
	for _, block := range shown.FindAllStringSubmatch(string(page), -1) {
		blocks[block[1]] = block[2]
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if file != "page_test.go" && blocks[file] != string(text) {
			t.Errorf("docs/testing.md does not show %s as it is", file)
		}
	}
	if len(blocks) != len(files)-1 {
		t.Errorf("docs/testing.md shows %d files, want %d", len(blocks), len(files)-1)
	}
}
