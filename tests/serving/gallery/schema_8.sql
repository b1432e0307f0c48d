PRAGMA application_id = 1515147079;
PRAGMA user_version = 8;
BEGIN TRANSACTION;
CREATE TABLE embeddings (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    embedding BLOB NOT NULL,
    from_thumbnail INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "embeddings" VALUES(1,X'61B82B3E5F21CC3E9331243E5AE221BF58EFE03E84CD5D3ED56785BEDA60903E',0);
INSERT INTO "embeddings" VALUES(2,X'1774623D6C8A1CBEBC63F7BD56C736BFD8BB063F7450AB3E7CE6C2BDCBB8673E',0);
INSERT INTO "embeddings" VALUES(3,X'BA5E043F64C125BFC4EFD83D364C13BE14DDEABD3BBB5FBD290303BFD2AE70BD',0);
CREATE TABLE embeddings_other (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    embedding BLOB NOT NULL,
    from_thumbnail INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE items (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    label TEXT,
    metadata TEXT NOT NULL,
    content_sha256 TEXT NOT NULL UNIQUE,
    added_at TEXT NOT NULL,
    change INTEGER NOT NULL
);
INSERT INTO "items" VALUES(1,'1.png','label 1','{}','0000000000000000000000000000000000000000000000000000000000000001','2026-11-27T05:48:03.566+00:00',1);
INSERT INTO "items" VALUES(2,'2.png','label 2','{}','0000000000000000000000000000000000000000000000000000000000000002','2026-11-27T05:48:03.566+00:00',1);
INSERT INTO "items" VALUES(3,'3.png','label 0','{"year": 1908}','0000000000000000000000000000000000000000000000000000000000000003','2026-11-27T05:48:03.566+00:00',1);
CREATE TABLE keys (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    key TEXT NOT NULL UNIQUE
);
INSERT INTO "keys" VALUES(2,'cam-1/0001.jpg');
INSERT INTO "keys" VALUES(3,'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx');
CREATE TABLE marks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    item INTEGER NOT NULL,
    query TEXT NOT NULL,
    query_source TEXT NOT NULL,
    same INTEGER NOT NULL,
    similarity REAL NOT NULL,
    model TEXT NOT NULL,
    marked_at TEXT NOT NULL,
    UNIQUE (item, query)
);
INSERT INTO "marks" VALUES(1,2,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','q.png',1,4.89794462919235229492e-02,'807583344bcb4921c62f4e63ccc1cda021156f790466f3d43af140cdec76723d','2026-11-27T05:48:03.600+00:00');
CREATE TABLE removals (item INTEGER PRIMARY KEY, change INTEGER NOT NULL);
INSERT INTO "removals" VALUES(4,2);
CREATE TABLE state (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
INSERT INTO "state" VALUES('change',2);
INSERT INTO "state" VALUES('count',3);
INSERT INTO "state" VALUES('dim',8);
INSERT INTO "state" VALUES('fingerprint','807583344bcb4921c62f4e63ccc1cda021156f790466f3d43af140cdec76723d');
INSERT INTO "state" VALUES('generation','');
INSERT INTO "state" VALUES('metric','cosine');
CREATE TABLE thumbnails (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    media_type TEXT NOT NULL,
    data BLOB NOT NULL
);
INSERT INTO "thumbnails" VALUES(1,'image/png',X'706963747572652031');
INSERT INTO "thumbnails" VALUES(2,'image/png',X'706963747572652032');
INSERT INTO "thumbnails" VALUES(3,'image/png',X'706963747572652033');
CREATE INDEX items_by_change ON items (change);
CREATE INDEX items_by_label ON items (label, id);
CREATE INDEX removals_by_change ON removals (change);
CREATE INDEX marks_by_query ON marks (query);
CREATE TRIGGER marks_of_removed AFTER DELETE ON items BEGIN
    DELETE FROM marks WHERE item = OLD.id;
    DELETE FROM marks WHERE query = OLD.content_sha256;
END;
CREATE TRIGGER items_added AFTER INSERT ON items BEGIN
    UPDATE state SET value = value + 1 WHERE key = 'count';
END;
CREATE TRIGGER items_removed AFTER DELETE ON items BEGIN
    UPDATE state SET value = value - 1 WHERE key = 'count';
END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('items',4);
INSERT INTO "sqlite_sequence" VALUES('marks',1);
COMMIT;
