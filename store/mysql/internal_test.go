package mysql

import (
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"mysql://u:p%40ss%2F@h1:3307,h2,[::1]:9/db?charset=utf8mb4": "u p@ss/ h1:3307 h2:3306 [::1]:9 db",
		"mariadb://u@h/db":                     "u  h:3306 db",
		"u:p@tcp(h:3307)/db?timeout=1s":        "u p h:3307 db",
		"u:p://@/@tcp(h:3307)/db":              "u p://@/ h:3307 db",
		"mysql://u:p@h/db?interpolateParams=1": "u p h:3306 db",
	} {
		l, err := parseURL(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := strings.Join(append(append([]string{l.config.User, l.config.Passwd}, l.addresses...), l.config.DBName), " ")
		if got != want || l.config.Timeout == 0 {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{
		"postgres://u:secret@h/db", "mysql://u:secret@/db", "mysql://u:secret@h1,,h2/db", "mysql://u:se%cret@h/db",
		"mysql://u:secret@h/db#x", "mysql://u:secret@h/db?timeout=never", "secret",
	} {
		if _, err := parseURL(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestMySQLTopology: the names that MySQL has for what MariaDB calls otherwise. It is written for, and not run there.
func TestMySQLTopology(t *testing.T) {
	t.Parallel()
	for _, each := range []struct {
		settings string
		replicas int
		crash    string
		failOver string
	}{
		{"innodb_flush_log_at_trx_commit=1 sync_binlog=1 log_bin=ON", 0, "", ""},
		{
			"innodb_flush_log_at_trx_commit=1 sync_binlog=0 log_bin=ON innodb_doublewrite=OFF", 1,
			"sync_binlog doublewrite", "none",
		},
		{
			"log_bin=ON sync_binlog=1 rpl_semi_sync_source_enabled=ON rpl_semi_sync_source_status=ON " +
				"rpl_semi_sync_source_timeout=4294967295 rpl_semi_sync_source_wait_point=AFTER_SYNC", 2, "", "",
		},
		{
			"log_bin=ON sync_binlog=1 rpl_semi_sync_source_enabled=ON rpl_semi_sync_source_status=OFF " +
				"rpl_semi_sync_source_timeout=10000 rpl_semi_sync_source_wait_point=AFTER_COMMIT", 2, "",
			"fallen 10000 AFTER_COMMIT",
		},
		{"innodb_flush_log_at_trx_commit=0 log_bin=ON sync_binlog=0 group_replication_group_name=g", 2, "all", ""},
		{"innodb_flush_log_at_trx_commit=2 log_bin=ON sync_binlog=0 wsrep_on=ON", 2, "all", ""},
	} {
		top := &topology{settings: make(map[string]string), replicas: each.replicas}
		for _, setting := range strings.Fields(each.settings) {
			name, value, _ := strings.Cut(setting, "=")
			top.settings[name] = value
		}
		wantRisks(t, each.settings, top.crashRisks(), each.crash)
		wantRisks(t, each.settings, top.failOverRisks(), each.failOver)
	}
}

// wantRisks checks that there is a risk for each word, and no other.
func wantRisks(t *testing.T, settings string, got []string, want string) {
	t.Helper()
	words := strings.Fields(want)
	for i, word := range words {
		if len(got) == len(words) && !strings.Contains(got[i], word) {
			t.Errorf("%s: %q, want words about %s", settings, got[i], word)
		}
	}
	if len(got) != len(words) {
		t.Errorf("%s: %q, want words about %q", settings, got, want)
	}
}
