-- +goose Up

-- What the provider calls the effect of a record: the field of tag 7 in the column extra, the last one of several, or NULL.
-- It never fails: what is damaged has none.
-- +goose StatementBegin
CREATE FUNCTION onceward_provider_id(extra bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
	fields bytea := extra || ''::bytea; -- read from where it is stored once, not for each byte
	size   integer := length(fields);
	at     integer := 0;
	tag    integer;
	part   integer;
	bits   integer;
	long   bigint;
	found  bytea;
BEGIN
	WHILE at < size LOOP
		tag := get_byte(fields, at);
		at := at + 1;
		long := 0;
		bits := 0;
		LOOP
			IF at >= size OR bits > 28 THEN
				RETURN NULL;
			END IF;
			part := get_byte(fields, at);
			at := at + 1;
			long := long | ((part & 127)::bigint << bits);
			bits := bits + 7;
			EXIT WHEN part < 128;
		END LOOP;
		IF long > size - at THEN
			RETURN NULL;
		END IF;
		IF tag = 7 THEN
			found := substr(fields, at + 1, long::integer);
		END IF;
		at := at + long::integer;
	END LOOP;
	RETURN nullif(found, ''::bytea);
END
$$;
-- +goose StatementEnd

-- Whoever writes a record maintains its indexes, also where functions are not for everybody.
GRANT EXECUTE ON FUNCTION onceward_provider_id(bytea) TO PUBLIC;

-- For finding a record by what the provider calls its effect. Most records have no such id, and pay for a look for the byte
-- that is its tag. The hash is there because an index does not take values of every length.
CREATE INDEX onceward_record_provider_id ON onceward_record (sha256(onceward_provider_id(extra)))
	WHERE position('\x07'::bytea IN extra) > 0 AND onceward_provider_id(extra) IS NOT NULL;

INSERT INTO onceward_schema (version, compatible) VALUES (3, 1);

-- +goose Down

DROP INDEX onceward_record_provider_id;
DROP FUNCTION onceward_provider_id(bytea);
DELETE FROM onceward_schema WHERE version = 3;
