-- The statements of the SQLite store, each after its name. sqlite.py loads them.

-- name: schema
CREATE TABLE records (
    key TEXT PRIMARY KEY NOT NULL, counter INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE TABLE log (
    entry INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,
    transaction_id TEXT NOT NULL, time REAL NOT NULL, written_at REAL NOT NULL,
    customer_key TEXT NOT NULL, customer_counter INTEGER NOT NULL,
    counterparty_key TEXT, counterparty_counter INTEGER,
    belief_updated INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE INDEX log_by_customer ON log (customer_key, customer_counter, transaction_id);
CREATE INDEX log_by_counterparty ON log (counterparty_key, counterparty_counter)
    WHERE counterparty_key IS NOT NULL;
CREATE INDEX log_by_time ON log (written_at);
CREATE TABLE write_check (id INTEGER PRIMARY KEY, content BLOB NOT NULL);

-- name: settings
PRAGMA cache_size = -32768;  -- in KB
PRAGMA journal_size_limit = 67108864;
PRAGMA wal_autocheckpoint = 2000;  -- pages. One that was written several times is copied once
PRAGMA temp_store = MEMORY;
PRAGMA secure_delete = ON;  -- always, not only for an erasure: pages move and rows are replaced

-- name: set_record
INSERT INTO records VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET counter = excluded.counter, data = excluded.data;

-- name: add_entry
INSERT INTO log (
    kind, transaction_id, time, written_at, customer_key, customer_counter,
    counterparty_key, counterparty_counter, belief_updated, content
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: read_log
SELECT
    entry, kind, transaction_id, time, written_at, customer_key, customer_counter,
    counterparty_key, counterparty_counter, belief_updated, content
FROM log WHERE entry > ? ORDER BY entry LIMIT ?;

-- name: read_history
-- Each side follows its index and ends at the limit, so that no long history is sorted.
SELECT
    entry, kind, transaction_id, time, written_at, customer_key, customer_counter,
    counterparty_key, counterparty_counter, belief_updated, content
FROM (
    SELECT * FROM (
        SELECT *, customer_counter AS counter FROM log
        WHERE customer_key = :key AND (time <= :until OR typeof(time) <> 'real')
        AND belief_updated >= :belief_updated
        ORDER BY customer_counter DESC, entry DESC LIMIT :limit
    )
    UNION ALL SELECT * FROM (
        SELECT *, counterparty_counter AS counter FROM log
        WHERE counterparty_key = :key AND (time <= :until OR typeof(time) <> 'real')
        AND belief_updated >= :belief_updated
        ORDER BY counterparty_counter DESC, entry DESC LIMIT :limit
    )
) ORDER BY counter DESC, entry DESC LIMIT :limit;

-- name: delete_oldest
DELETE FROM log WHERE entry IN (
    SELECT entry FROM log WHERE written_at < ? ORDER BY written_at, entry LIMIT ?
);

-- name: delete_party
DELETE FROM log WHERE entry IN (
    SELECT entry FROM (
        SELECT *, customer_counter AS counter FROM log WHERE customer_key = :key
        UNION ALL SELECT *, counterparty_counter FROM log WHERE counterparty_key = :key
    ) ORDER BY counter, entry LIMIT :limit
);

-- name: check_write
INSERT OR REPLACE INTO write_check VALUES (1, zeroblob(65536));
