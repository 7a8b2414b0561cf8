package doctor

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// granted are the rights of a role that does not own the tables,
// as docs/postgresql.md lists them. A test compares the two.
var granted = map[string]string{
	"schema":          "SELECT",
	"record":          "SELECT, INSERT, UPDATE, DELETE",
	"late_completion": "SELECT, INSERT, DELETE",
	"external_event":  "SELECT, INSERT, DELETE",
	"audit":           "SELECT, INSERT, DELETE",
	"outbox":          "SELECT, INSERT, DELETE",
	"delivery":        "SELECT, INSERT, UPDATE, DELETE",
	"execution":       "SELECT, INSERT, DELETE",
	"message":         "SELECT",
	"inbox":           "SELECT, INSERT, DELETE",
}

// grantedSequences are the sequences whose values a role uses.
var grantedSequences = []string{"attempt", "outbox_number"}

// allRights returns the rights that exist on a table of this server. Queries about other rights fail.
func (p *postgres) allRights() []string {
	rights := []string{"SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"}
	if p.version >= 170000 {
		rights = append(rights, "MAINTAIN") // LOCK TABLE, VACUUM and REINDEX, for one
	}
	return rights
}

// role is the role of the service.
type role struct {
	Name                              string
	Super, Bypass, CreateRole, Copies bool
}

// attributes returns the attributes of a role that the store does not need.
func (me role) attributes() (names []string) {
	if me.Bypass {
		names = append(names, "BYPASSRLS")
	}
	if me.CreateRole {
		names = append(names, "CREATEROLE")
	}
	if me.Copies {
		names = append(names, "REPLICATION")
	}
	return names
}

func tryPrivileges(ctx context.Context, p *postgres, r *Result) error {
	const least = "use a role of its own for the service, with what docs/postgresql.md grants, and migrate as another one"
	var me role
	err := p.query(ctx, []any{&me.Name, &me.Super, &me.Bypass, &me.CreateRole, &me.Copies},
		`SELECT rolname::text, rolsuper, rolbypassrls, rolcreaterole, rolreplication
			FROM pg_roles WHERE rolname = current_user`)
	if err != nil {
		return err
	}
	r.saw("the role is %s", me.Name)
	if me.Super {
		r.find(Weak, least, "the role %s is a superuser", me.Name)
		return nil // a superuser has all rights
	}
	for _, attribute := range me.attributes() {
		r.find(Weak, least, "the role %s has %s, which the store does not need", me.Name, attribute)
	}
	if !p.tables {
		return errNoTables
	}
	owner, err := p.tryOwner(ctx, r, me, least)
	if err != nil {
		return err
	}
	if err := p.tryRights(ctx, r, me, owner, least); err != nil {
		return err
	}
	return p.tryPublic(ctx, r)
}

// tryOwner checks what a role may do beside its rights to tables.
func (p *postgres) tryOwner(ctx context.Context, r *Result, me role, least string) (owner bool, err error) {
	var creates, uses bool
	err = p.query(ctx, []any{&owner, &creates, &uses}, `SELECT pg_has_role(relowner, 'USAGE'),
			has_schema_privilege(relnamespace, 'CREATE'), has_schema_privilege(relnamespace, 'USAGE')
		FROM pg_class WHERE oid = to_regclass($1)`, p.table("record"))
	switch {
	case err != nil:
		return false, err
	case owner:
		r.saw("it owns the tables")
		r.find(Note, least, "the role %s owns the tables: it may drop them, and change the functions that sweep and reap",
			me.Name)
	case creates:
		r.find(Weak, "REVOKE CREATE ON SCHEMA "+p.schema+" FROM "+me.Name+" (and from PUBLIC)",
			"the role %s may create objects in the schema %s, such as a function that is called instead of the store's",
			me.Name, p.schema)
	}
	if !uses {
		r.find(Broken, "GRANT USAGE ON SCHEMA "+p.schema+" TO "+me.Name, "the role %s may not use the schema %s", me.Name,
			p.schema)
	}
	return owner, nil
}

// tryRights compares the rights to each table with the documented rights.
func (p *postgres) tryRights(ctx context.Context, r *Result, me role, owner bool, least string) error {
	for _, name := range slices.Sorted(maps.Keys(granted)) {
		var has []string
		err := p.query(ctx, []any{&has}, `SELECT coalesce(array_agg(x.name), '{}') FROM unnest($2::text[]) AS x (name)
			WHERE has_table_privilege(to_regclass($1), x.name)`, p.table(name), p.allRights())
		if err != nil {
			return err
		}
		want := strings.Split(granted[name], ", ")
		missing, beyond := without(want, has), without(has, want)
		if len(missing) > 0 {
			rights := strings.Join(missing, ", ")
			r.find(Broken, "GRANT "+rights+" ON "+p.table(name)+" TO "+me.Name, "the role %s lacks %s on %s%s", me.Name,
				rights, p.prefix, name)
		}
		if len(beyond) > 0 && !owner {
			rights := strings.Join(beyond, ", ")
			r.find(Weak, "REVOKE "+rights+" ON "+p.table(name)+" FROM "+me.Name,
				"the role %s has %s on %s%s, which the store does not need",
				me.Name, rights, p.prefix, name)
		}
	}
	return p.trySequences(ctx, r, me)
}

func (p *postgres) trySequences(ctx context.Context, r *Result, me role) error {
	for _, name := range grantedSequences {
		var may bool
		err := p.query(ctx, []any{&may}, `SELECT has_sequence_privilege(to_regclass($1), 'USAGE')`, p.table(name))
		if err != nil {
			return err
		}
		if !may {
			r.find(Broken, "GRANT USAGE ON SEQUENCE "+p.table(name)+" TO "+me.Name, "the role %s may not take values of %s%s",
				me.Name, p.prefix, name)
		}
	}
	var refused string
	err := p.query(ctx, []any{&refused}, `SELECT coalesce(string_agg(proname, ', '), '') FROM pg_proc
		WHERE pronamespace = to_regnamespace(quote_ident($2)) AND starts_with(proname::text, $1::text)
			AND NOT has_function_privilege(oid, 'EXECUTE')`,
		p.prefix, p.schema)
	if err == nil && refused != "" {
		r.find(Broken, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "+p.schema+" TO "+me.Name, "the role %s may not call %s",
			me.Name, refused)
	}
	return err
}

// tryPublic finds what every user of the database may do.
func (p *postgres) tryPublic(ctx context.Context, r *Result) error {
	var rights string
	err := p.query(ctx, []any{&rights}, `
		SELECT coalesce(string_agg(DISTINCT a.privilege_type || ' on ' || c.relname, ', '), '')
		FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
		WHERE c.relnamespace = to_regnamespace(quote_ident($2)) AND starts_with(c.relname::text, $1::text) AND a.grantee = 0`,
		p.prefix, p.schema)
	if err == nil && rights != "" {
		r.find(Weak, "REVOKE ALL ON ALL TABLES IN SCHEMA "+p.schema+" FROM PUBLIC",
			"every user of the database has %s: stored answers are those of all tenants", rights)
	}
	return err
}

// without returns the texts of the first list that are not in the second.
func without(list, others []string) (left []string) {
	for _, each := range list {
		if !slices.Contains(others, each) {
			left = append(left, each)
		}
	}
	return left
}
