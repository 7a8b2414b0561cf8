// Package failover counts the answers that a fail-over of PostgreSQL loses: two servers, of which one follows the other,
// serve a guard under constant traffic; the link between them is cut, the primary is killed or paused, and the standby
// is promoted. Each answer that a caller was sent must then be the answer to a retry. With synchronous replication none
// is lost; without it their number is counted and told. It holds tests only.
package failover
