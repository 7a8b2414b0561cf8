package main

import (
	"context"
	"path/filepath"
	"testing"
)

// TestContenders does each operation a few times: what is measured must do what it says.
func TestContenders(t *testing.T) {
	for _, c := range sqliteContenders {
		t.Run(c.name, func(t *testing.T) {
			a, err := c.open(context.Background(), filepath.Join(t.TempDir(), "bench.db"))
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := a.operate(context.Background()); err != nil {
					t.Error(err)
				}
			}
			if err := a.close(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, c := range httpContenders {
		t.Run(c.name, func(t *testing.T) {
			call, check, err := c.open()
			if err != nil {
				t.Fatal(err)
			}
			key := newKey()
			call(key)
			if c.replays {
				call(key)
			}
			if err := check(c.replays); err != nil {
				t.Error(err)
			}
		})
	}
}
