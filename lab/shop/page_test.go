package shop_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
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

// TestPageLinksToTheseFiles: docs/testing.md links to the files of this package, which are compiled and run.
func TestPageLinksToTheseFiles(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if file != "page_test.go" && !strings.Contains(string(page), "](../lab/shop/"+file+")") {
			t.Errorf("docs/testing.md does not link to %s", file)
		}
	}
	if len(files) < 4 {
		t.Errorf("found only the files %v", files)
	}
}
