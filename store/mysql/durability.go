package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The queries for what a server keeps. SHOW also works if a variable does not exist: the variables of semi-synchronous
// replication have two names, and MySQL has none of them until the plugin is installed.
const (
	selectSettings = `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'sync_binlog',
		'log_bin', 'binlog_format', 'innodb_doublewrite', 'wsrep_on', 'group_replication_group_name',
		'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled',
		'rpl_semi_sync_master_timeout', 'rpl_semi_sync_source_timeout',
		'rpl_semi_sync_master_wait_point', 'rpl_semi_sync_source_wait_point')`
	selectStatusOfReplicas = `SHOW GLOBAL STATUS WHERE Variable_name IN ('slaves_connected',
		'rpl_semi_sync_master_status', 'rpl_semi_sync_source_status', 'wsrep_cluster_size')`
	// selectDumps counts the connected replicas. A user without the privilege PROCESS sees none.
	selectDumps = `SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'`
)

// topology holds the settings of a server that decide whether it can lose commits that it has acknowledged.
type topology struct {
	settings map[string]string
	// replicas is the number of connected replicas that a fail-over could go to, as far as the user may see them.
	replicas int
}

// value returns the value of a setting, by one of its names.
func (t *topology) value(names ...string) string {
	for _, name := range names {
		if value := t.settings[name]; value != "" {
			return value
		}
	}
	return ""
}

// certified reports whether the nodes of a cluster agree on each commit before it is acknowledged.
func (t *topology) certified() bool {
	return t.value("wsrep_on") == "ON" || t.value("group_replication_group_name") != ""
}

// errStatementLog is returned for a server whose binary log has a format that the store cannot work with.
var errStatementLog = errors.New("binlog_format is STATEMENT, with which the server refuses writes at " +
	"READ COMMITTED: set it to ROW or MIXED")

// checkDurability logs a warning for each way in which the server can lose commits that it has acknowledged, or returns
// an error if an option forbids it. It runs when the store is opened, before a caller relies on such commits.
func (s *Store) checkDurability(ctx context.Context) error {
	t, err := s.topology(ctx)
	if err != nil {
		return err
	}
	if t.value("log_bin") == "ON" && t.value("binlog_format") == "STATEMENT" {
		return errStatementLog
	}
	crash, failOver := t.crashRisks(), t.failOverRisks()
	switch {
	case s.options.strict && len(crash)+len(failOver) > 0:
		return fmt.Errorf("the server can lose commits that it has acknowledged: %s",
			strings.Join(append(crash, failOver...), "; "))
	case s.options.syncReplicas && len(failOver) > 0:
		return fmt.Errorf("a fail-over can lose commits that were acknowledged: %s", strings.Join(failOver, "; "))
	case s.options.syncReplicas && t.mayHaveReplicas():
		return errors.New("a fail-over can lose commits that were acknowledged, if there are replicas: the binary log is " +
			"on, nothing is waited for, and this user does not see who reads it (grant PROCESS)")
	}
	for _, risk := range append(crash, failOver...) {
		s.logger.WarnContext(ctx, "onceward: the server can lose commits that it has acknowledged, "+
			"and work would then be done twice", "because", risk)
	}
	return nil
}

// topology reads the settings and the number of replicas from the server.
func (s *Store) topology(ctx context.Context) (*topology, error) {
	t := &topology{settings: make(map[string]string)}
	for _, statement := range []string{selectSettings, selectStatusOfReplicas} {
		err := s.query(ctx, statement, nil, func(rows *sql.Rows) error {
			var name, value string
			err := rows.Scan(&name, &value)
			t.settings[strings.ToLower(name)] = value
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	err := s.query(ctx, selectDumps, nil, func(rows *sql.Rows) error { return rows.Scan(&t.replicas) })
	if connected, notNumber := strconv.Atoi(t.value("slaves_connected")); notNumber == nil {
		t.replicas = max(t.replicas, connected)
	}
	return t, err
}

// crashRisks lists what a crash of the server or of its machine can lose. A cluster
// loses nothing if its members crash one by one, because the other members have
// each commit. There the risk is a crash of all members at once, as in a power cut.
func (t *topology) crashRisks() (risks []string) {
	where := "a crash of the machine"
	if t.certified() {
		where = "a crash of all nodes at once"
	}
	switch flush := t.value("innodb_flush_log_at_trx_commit"); flush {
	case "", "1", "3":
	case "2":
		risks = append(risks, "innodb_flush_log_at_trx_commit is 2: "+where+" loses the last second of commits")
	default:
		risks = append(risks, "innodb_flush_log_at_trx_commit is "+flush+": "+
			strings.Replace(where, "of the machine", "of the server", 1)+" loses the last second of commits")
	}
	if sync := t.value("sync_binlog"); t.value("log_bin") == "ON" && !t.certified() && sync != "1" {
		risks = append(risks, "sync_binlog is "+sync+": a crash of the machine can lose what replicas have, or are to have")
	}
	if doublewrite := t.value("innodb_doublewrite"); doublewrite == "OFF" || doublewrite == "0" {
		risks = append(risks, "innodb_doublewrite is off: a crash of the machine can damage pages")
	}
	return risks
}

// longTimeout is the shortest time that a server must wait for replicas to count as waiting.
const longTimeout = time.Hour

// failOverRisks lists what a fail-over to a replica can lose.
func (t *topology) failOverRisks() (risks []string) {
	if t.certified() || t.replicas == 0 {
		return nil
	}
	if t.value("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled") != "ON" {
		return []string{fmt.Sprintf("there are %d replicas and none is waited for (semi-synchronous replication is off): "+
			"a fail-over loses the last commits", t.replicas)}
	}
	if t.value("rpl_semi_sync_master_status", "rpl_semi_sync_source_status") != "ON" {
		risks = append(risks, "semi-synchronous replication has fallen back to asynchronous: "+
			"a fail-over loses the last commits")
	}
	timeout := t.value("rpl_semi_sync_master_timeout", "rpl_semi_sync_source_timeout")
	if ms, err := strconv.ParseInt(timeout, 10, 64); err == nil && time.Duration(ms)*time.Millisecond < longTimeout {
		risks = append(risks, fmt.Sprintf("semi-synchronous replication waits %d ms for a replica and then goes on without "+
			"(rpl_semi_sync_…_timeout): a fail-over after that loses commits", ms))
	}
	if t.value("rpl_semi_sync_master_wait_point", "rpl_semi_sync_source_wait_point") == "AFTER_COMMIT" {
		risks = append(risks, "rpl_semi_sync_…_wait_point is AFTER_COMMIT: others see, and replay, what a fail-over "+
			"can still lose")
	}
	return risks
}

// mayHaveReplicas reports whether there may be replicas that the user cannot see.
func (t *topology) mayHaveReplicas() bool {
	return !t.certified() && t.replicas == 0 && t.value("log_bin") == "ON" &&
		t.value("slaves_connected") == "" &&
		t.value("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled") != "ON"
}
