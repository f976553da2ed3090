-- Read schedules: those with these ids, or else a page of all, oldest first.
-- Arguments: ids or {}, owner whose schedules are listed or '' for all, offset, limit
-- Answers {the time, how many there are, rows with the parameters of their tasks if read by id}
local ids, owner, offset, limit = unpack(ARG, 1, 4)
local all = owner == '' and 'schedules' or 'schedules:of:' .. owner
local is_page = #ids == 0
if is_page then ids = redis.call('ZRANGE', P .. all, offset, offset + limit - 1) end
local rows = {}
for _, id in ipairs(ids) do
  local row = schedule_row(id)
  if row then
    row[#row + 1] = is_page and '' or redis.call('HGET', P .. 'sc:' .. id, 'params')
    rows[#rows + 1] = row
  end
end
return cmsgpack.pack({{}, {NOW, redis.call('ZCARD', P .. all), rows}})
