-- How many quotes of the hour before each trade had a bid within a tenth of its price.
SELECT t.id, (SELECT count(*) FROM quotes q
              WHERE q.sym = t.sym AND q.ts BETWEEN t.ts - INTERVAL '1 hour' AND t.ts
                AND q.bid BETWEEN t.price - 0.1 AND t.price + 0.1) AS n
FROM trades t
