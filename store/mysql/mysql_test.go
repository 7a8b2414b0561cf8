package mysql_test

import (
	"database/sql"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/storetest"
)

var counter atomic.Int64

func fresh(t testing.TB) string {
	t.Helper()
	base := os.Getenv("MRECPORT")
	admin, err := sql.Open("mysql", "root@tcp(127.0.0.1:"+base+")/")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	name := fmt.Sprintf("t%d_%d", os.Getpid(), counter.Add(1))
	if _, err := admin.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		admin, _ := sql.Open("mysql", "root@tcp(127.0.0.1:"+base+")/")
		defer admin.Close()
		admin.Exec("DROP DATABASE " + name)
	})
	return "mysql://root@127.0.0.1:" + base + "/" + name
}

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) storetest.Instance {
			url := fresh(t)
			s, err := mysql.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return storetest.Instance{Store: s, Reopen: func(t testing.TB) store.Store {
				s.Close()
				if s, err = mysql.Open(t.Context(), url); err != nil {
					t.Fatal(err)
				}
				return s
			}}
		},
	})
}
