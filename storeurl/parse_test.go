package storeurl_test

import (
	"testing"

	"github.com/onceward/onceward/storeurl"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]storeurl.Location{
		"store.db":                {Engine: storeurl.SQLite, URL: "store.db"},
		"sqlite:dir/store.db":     {Engine: storeurl.SQLite, URL: "dir/store.db"},
		"sqlite:///tmp/store.db":  {Engine: storeurl.SQLite, URL: "/tmp/store.db"},
		"postgres://app@host/db":  {Engine: storeurl.Postgres, URL: "postgres://app@host/db"},
		"postgresql://host/db":    {Engine: storeurl.Postgres, URL: "postgresql://host/db"},
		"redis://host:6379/0":     {Engine: storeurl.Redis, URL: "redis://host:6379/0"},
		"rediss+cluster://a,b":    {Engine: storeurl.Redis, URL: "rediss+cluster://a,b"},
		"redis://host?prefix=one": {Engine: storeurl.Redis, URL: "redis://host", Prefix: "one"},
		"mysql://app@a:1,b:2/db":  {Engine: storeurl.MySQL, URL: "mysql://app@a:1,b:2/db"},
		"mariadb://h/d?tls=true":  {Engine: storeurl.MySQL, URL: "mysql://h/d?tls=true"},
		"mysql://h/d?prefix=pay_&tls=true&front=redis://r:1/0": {
			Engine: storeurl.MySQL, URL: "mysql://h/d?tls=true", Prefix: "pay_", Front: "redis://r:1/0",
		},
		"mysql://a,b/d?sync_replicas_only=true": {Engine: storeurl.MySQL, URL: "mysql://a,b/d", SyncReplicasOnly: true},
		"dynamodb://records?region=eu-central-1": {
			Engine: storeurl.DynamoDB, URL: "dynamodb://records?region=eu-central-1",
		},
		"postgres://h/d?schema=app&sslmode=disable&prefix=pay_": {
			Engine: storeurl.Postgres, URL: "postgres://h/d?sslmode=disable", Schema: "app", Prefix: "pay_",
		},
		"postgres://a:1,b:2/d?sync_replicas_only=true&sslmode=disable": {
			Engine: storeurl.Postgres, URL: "postgres://a:1,b:2/d?sslmode=disable", SyncReplicasOnly: true,
		},
		"redis://h?sync_replicas_only=true": {Engine: storeurl.Redis, URL: "redis://h", SyncReplicasOnly: true},
		"postgres://h/d?sslmode=disable&front=redis://r:1/0": {
			Engine: storeurl.Postgres, URL: "postgres://h/d?sslmode=disable", Front: "redis://r:1/0",
		},
	} {
		if got, err := storeurl.Parse(url); err != nil || got != want {
			t.Errorf("%s is %+v (%v), want %+v", url, got, err, want)
		}
	}
	for _, url := range []string{
		"", "oracle://host/db", "redis://h?prefix=a&prefix=b", "postgres://h/d?front=http://x",
		"postgres://h/d?schema=a&schema=b", "redis://h?front=redis://r:1/0",
		"mysql://h/d?prefix=a&prefix=b", "dynamodb://records?front=redis://r:1/0", "app:secret@tcp(host:3306)/db",
		"unix(/run/mysqld.sock)/db",
		"postgres://h/d?sync_replicas_only=1", "redis://h?sync_replicas_only=",
	} {
		if got, err := storeurl.Parse(url); err == nil {
			t.Errorf("%q is %+v", url, got)
		}
	}
}
