-- How many sessions overlap each session, itself included; open ones have no end yet.
SELECT a.id, (SELECT count(*) FROM sessions p
              WHERE p.started <= coalesce(a.ended, a.started) AND (p.ended > a.started OR p.ended IS NULL)) AS n
FROM sessions a
