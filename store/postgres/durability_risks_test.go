package postgres

import (
	"strings"
	"testing"
)

// TestDurabilityRisks: each setting that can lose an acknowledged commit is named, and no other.
func TestDurabilityRisks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fsync, pages, synchronous, names string
		replicas                         int
		want                             []string
	}{
		{"on", "on", "on", "", 0, nil},
		{"on", "on", "remote_apply", "FIRST 1 (a, b)", 2, nil},
		{"on", "on", "remote_write", "a", 1, nil},
		{"on", "on", "local", "", 0, nil},
		{"off", "on", "on", "", 0, []string{"fsync"}},
		{"on", "off", "on", "", 0, []string{"full_page_writes"}},
		{"on", "on", "off", "", 0, []string{"synchronous_commit is off"}},
		{"on", "on", "on", "", 1, []string{"none is waited for"}},
		{"on", "on", "local", "a", 1, []string{"none is waited for"}},
		{"on", "on", "off", "a", 1, []string{"synchronous_commit is off", "none is waited for"}},
		{"off", "off", "off", "", 3, []string{"fsync", "full_page_writes", "synchronous_commit is off", "there are 3 standbys"}},
	} {
		risks := durabilityRisks(c.fsync, c.pages, c.synchronous, c.names, c.replicas)
		if len(risks) != len(c.want) {
			t.Errorf("%+v: the risks are %q", c, risks)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(risks[i], want) {
				t.Errorf("%+v: risk %d is %q, want it to say %q", c, i, risks[i], want)
			}
		}
	}
}
