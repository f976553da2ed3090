-- Find out which results belong to a task, to delete the others.
-- Arguments: where they are, as in `results`
-- Answers 1 for each that is known, else 0
local known = {}
for number, at in ipairs(ARG[1]) do known[number] = redis.call('ZSCORE', P .. 'results', at) and 1 or 0 end
return cmsgpack.pack({{}, known})
