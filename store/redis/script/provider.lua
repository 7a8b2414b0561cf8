#!lua flags=allow-oom
-- Notes that a record carries the id that a provider gave, where the record is in another slot.
--
-- KEYS: the index of the provider's id.
-- ARGV: the hash of the record's ID, until when it is kept in milliseconds since 1970 or +inf.
return note(KEYS[1], ARGV[1], ARGV[2]) or 1
