package storeurl_test

import (
	"strings"
	"testing"

	"github.com/onceward/onceward/storeurl"
)

// TestPlainSQLNamesItsSchema: psql knows no search_path in a URL, so a script says itself where its tables are.
func TestPlainSQLNamesItsSchema(t *testing.T) {
	t.Parallel()
	for search, want := range map[string]string{
		"":                         "in the first schema of the search_path",
		"?search_path=app":         `in schema "app"`,
		"?search_path=App,public":  `in schema "app"`,
		"?search_path=%22A%20b%22": `in schema "A b"`,
		"?search_path=%22$user%22": "in the first schema of the search_path",
	} {
		script, err := storeurl.PlainSQL("postgres://user@host/database"+search, 0)
		if head, _, _ := strings.Cut(script, "\n"); err != nil || !strings.Contains(head, want) {
			t.Errorf("%s: %q, %v; want %s", search, head, err, want)
		}
	}
}

// TestKeywords: what libpq takes beside URLs is no path, and is not repeated with its password.
func TestKeywords(t *testing.T) { // not parallel: it changes the directory
	t.Chdir(t.TempDir())
	const dsn = "host=127.0.0.1 user=u password=hunter2 dbname=d"
	_, parseErr := storeurl.Parse(dsn)
	for _, err := range []error{parseErr, storeurl.Migrate(t.Context(), dsn)} {
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "postgres://") {
			t.Errorf("keywords and values: %v", err)
		}
	}
}
